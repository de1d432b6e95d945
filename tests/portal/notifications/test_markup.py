"""What others typed is shown as it is: no mentions, links or tags of a service."""

import json
from typing import Any

import pytest
import requests
from apprise.manager_plugins import NotificationManager

from portal.notifications import sender
from portal.notifications.channel_types import TYPES
from portal.notifications.markup import BREAK, literal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of plugins that are not used here
CONFIGS = {
    "slack": {"url": "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"},
    "discord": {"url": "https://discord.com/api/webhooks/12345678901/abcDEF_-abcdefghijklmnop"},
    "mattermost": {"url": "https://chat.example.org/hooks/abcdefgh"},
    "telegram": {"token": "123456789:AAFabcdefghijklmnopqrstuvwxyz1234567", "chat": "12345"},
    "teams": {
        "url": "https://x.logic.azure.com:443/workflows/abc/triggers/manual/paths/invoke?api-version=2016-06-01"
        "&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=SIG_1"
    },
}
TITLE = "Job 5 “@channel [free](https://phish.example)” failed"
TEXT = (
    'File "train.py", line 3, in <module>\nassert a <b and c> d\n<!here> <@U77> @all @everyone *so* '
    '<a href="https://phish.example">portal</a> &amp; <https://phish.example|portal> [x](https://phish.example)'
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was posted instead of a connection."""
    bodies: list[dict[str, Any]] = []

    def request(self: object, method: str, url: str, **named: Any) -> requests.Response:
        bodies.append(json.loads(named["data"]))
        response = requests.Response()
        response.status_code = 200
        response._content = b"ok"
        return response

    monkeypatch.setattr(requests.Session, "request", request)
    monkeypatch.setattr(NotificationManager, "disable", lambda self, *schemes: None)  # for all that this process sends
    monkeypatch.setattr(requests.Session, "get_redirect_target", requests.Session.get_redirect_target)
    monkeypatch.setattr(requests.Session, "trust_env", True, raising=False)
    return bodies


def post(type: str) -> None:
    target, words = TYPES[type].target(CONFIGS[type], ()), literal(type, TITLE, TEXT)
    assert sender.chat(target.url, words.title, words.text, target.schemes, words.format)["sent"]


@pytest.mark.parametrize(("type", "key"), [("discord", "content"), ("mattermost", "text")])
def test_markdown_and_mentions_are_text(sent: list[dict[str, Any]], type: str, key: str) -> None:
    post(type)
    [body] = sent
    for call in ("@channel", "@all", "@everyone", "<!here", "<@U77", "[free](", "[x](", "<https"):
        assert call not in body[key]
    for kept in ("<module\\>", f"<{BREAK}!here", "&amp;"):
        assert kept.replace("<module", f"<{BREAK}module").replace(f"<{BREAK}!", f"<{BREAK}\\!") in body[key]
    assert "avatar_url" not in body and "icon_url" not in body


def test_tags_are_text_in_telegram(sent: list[dict[str, Any]]) -> None:
    post("telegram")
    [body] = sent
    assert body["parse_mode"] == "HTML" and "<a " not in body["text"] and "href" in body["text"]
    for kept in ("in &lt;module&gt;", "a &lt;b and c&gt; d", "&lt;a href=", "&amp;amp;", "line 3"):
        assert kept in body["text"]


def test_slack_and_teams_show_words(sent: list[dict[str, Any]]) -> None:
    post("slack")
    post("teams")
    slack, teams = sent
    assert slack["mrkdwn"] is False and "<!here>" not in json.dumps(slack) and "github.com" not in json.dumps(slack)
    card = teams["attachments"][0]["content"]
    title, text = (next(each["text"] for each in card["body"] if each.get("id") == name) for name in ("title", "body"))
    assert "[free](" not in title and "[x](" not in text and "github.com" not in json.dumps(teams)
    assert card["msteams"] == {"width": "full"}
