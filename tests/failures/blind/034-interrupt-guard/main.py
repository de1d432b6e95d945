import _thread
import signal
import threading
import time

BUDGET = 4
signal.signal(signal.SIGINT, signal.default_int_handler)


def used_up():
    print(f"time budget of {BUDGET} s is used up, interrupting")
    _thread.interrupt_main()


guard = threading.Timer(BUDGET, used_up)
guard.daemon = True
guard.start()
for step in range(200):
    time.sleep(0.1)
    if step % 10 == 0:
        print("step", step)
