"""Where the help of each page is in the documentation: what "Help" at the top of the page leads to."""

from django.urls import reverse

OVERVIEW = "index"
PAGES: dict[str, str] = {
    "home": "user/first-day#2-look-around",
    "home:walls": "admin/wall-screen",
    "accounts": "user/account",
    "accounts:invite": "user/first-day#1-join",
    "accounts:tokens": "user/account#api-tokens",
    "accounts:users": "admin/users",
    "accounts:groups": "admin/users#groups",
    "accounts:group": "admin/users#groups",
    "accounts:invites": "admin/users#invite-a-person",
    "accounts:lab-settings": "admin/users#what-members-see-of-each-other",
    "projects": "user/projects-and-code",
    "projects:detail": "user/projects-and-code#upload-code",
    "projects:code": "user/projects-and-code#versions",
    "projects:changes": "user/projects-and-code#versions",
    "projects:file": "user/results#what-the-pages-show-of-files",
    "projects:gallery": "user/projects-and-code#start-from-an-example",
    "projects:example": "user/projects-and-code#start-from-an-example",
    "jobs": "user/jobs",
    "jobs:list": "user/jobs#find-it-again",
    "jobs:new": "user/job-fields",
    "jobs:queue": "user/waiting#the-queue",
    "jobs:compare": "user/results#compare-jobs",
    "jobs:detail": "user/jobs#the-page-of-a-job",
    "jobs:edit": "user/jobs#act-on-it",
    "jobs:tab": "user/jobs#the-page-of-a-job",
    "jobs:view-output": "user/results#what-the-pages-show-of-files",
    "jobs:environments": "user/environments",
    "jobs:environment": "user/environments#the-page-of-an-environment",
    "jobs:admin-environments": "admin/environments",
    "environments:network": "admin/network",
    "environments": "user/environments#the-page-of-an-environment",
    "environments:new": "user/environments#make-one",
    "environments:new-image": "user/own-images",
    "environments:admin-images": "admin/images",
    "jobs:deactivate-user": "admin/users#when-someone-leaves",
    "jobs:limits": "admin/limits",
    "jobs:limit-user": "admin/limits",
    "jobs:limit-group": "admin/limits",
    "cluster:reservations": "user/waiting#reservations",
    "cluster:reservation": "user/waiting#reservations",
    "cluster:new-reservation": "admin/reservations#reserve-gpus",
    "cluster:add-node": "admin/nodes#add-a-node",
    "cluster:added-node": "admin/nodes#add-a-node",
    "cluster:rejoin-node": "admin/nodes#tokens",
    "usage": "admin/usage",
    "usage:ledger": "admin/usage#fairness-ledger-who-lent-and-who-borrowed",
    "monitoring": "user/cluster",
    "monitoring:node": "user/cluster#a-gpu-that-does-little",
    "monitoring:job": "user/elastic",
    "monitoring:admin-nodes": "admin/nodes#states-and-actions",
    "monitoring:admin-node": "admin/nodes#states-and-actions",
    "forecast": "user/waiting#what-would-help",
    "scheduler:admin": "admin/index",
    "scheduler:policy": "admin/policies",
    "scheduler:policy-preview": "admin/policies#what-the-preview-shows",
    "whatif": "admin/policies#simulate-recent-history-under-other-policies",
    "api": "api/index",
    "interface:glossary": "reference/glossary",
    "interface:audit": "admin/audit#audit-log",
}
"""By the name of a page's URL, or of its app for all others of it."""


def help_address(view_name: str) -> str:
    """Return the address of the help for a page; the overview for one that has none of its own."""
    app = view_name.partition(":")[0]
    page, _, section = PAGES.get(view_name, PAGES.get(app, OVERVIEW)).partition("#")
    return reverse("interface:help", args=[f"{page}.html"]) + (f"#{section}" if section else "")
