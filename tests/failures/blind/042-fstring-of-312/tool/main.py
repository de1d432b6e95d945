from tool.report import report

print(report({"lr": 0.1, "loss": 0.37}))
