"""Rows of earlier releases."""

import pytest

from portal.cluster.models import Node
from tests.portal.jobs_world import make_node
from tests.portal.upgrades import upgrade_from


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_problems_that_an_earlier_agent_reported_get_their_fix() -> None:
    make_node("old", problems=[{"text": "Too hot.", "mend": "Cool it.", "blocking": True}, {"text": "Loud."}])
    make_node("new", problems=[{"text": "Too hot.", "fix": "Cool it.", "mend": "Cool it.", "blocking": True}])
    upgrade_from("cluster", "0008_report_digest")
    fixes = {node.name: [problem["fix"] for problem in node.problems] for node in Node.objects.all()}
    assert fixes == {"old": ["Cool it.", ""], "new": ["Cool it."]}
