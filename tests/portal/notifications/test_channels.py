"""The types of channels: what may be filled in, where it leads, and that secrets stay where they are."""

import inspect
import json
from typing import Any

import pytest
from apprise.manager_plugins import NotificationManager
from apprise.plugins import NotifyBase
from django.core.cache import cache
from django.test import Client

from portal.accounts.models import User
from portal.environments.credentials import seal, unseal
from portal.notifications import services
from portal.notifications.channel_types import CONNECTION_OPTIONS, NEVER, TYPES
from portal.notifications.models import Channel, Delivery, Notice, NotificationSettings
from portal.refused import Refused
from portal.sentences.notices import notice_text
from tests.portal import jobs_world as world
from tests.portal.outbox import Receiver, deliver

pytestmark = pytest.mark.django_db
SLACK = "https://hooks.slack.com/services/T000/B000/abcdefABCDEF"
FLOW = "/workflows/wf_1-a/triggers/manual/paths/invoke"
FLOW_OPTIONS = "api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=Ab_c-9"
TEAMS = f"https://prod-7.westeurope.logic.azure.com:443{FLOW}?{FLOW_OPTIONS}"
POWER = f"https://x.environment.api.powerplatform.com/powerautomate/automations/direct/cu/07{FLOW}/?{FLOW_OPTIONS}"

GOOD: list[tuple[str, dict[str, str], str, str]] = [
    ("webhook", {"url": "https://hooks.example.org/x?key=1"}, "hooks.example.org", "https://hooks.example.org/x?key=1"),
    ("slack", {"url": SLACK}, "hooks.slack.com", "slack://T000/B000/abcdefABCDEF/?"),
    (
        "teams",
        {"url": TEAMS},
        "prod-7.westeurope.logic.azure.com",
        "workflows://prod-7.westeurope.logic.azure.com:443/wf_1-a?sig=Ab_c-9&api-version=2016-06-01&image=no",
    ),
    (
        "teams",
        {"url": POWER.replace("2016-06-01", "1")},
        "x.environment.api.powerplatform.com",
        "workflows://x.environment.api.powerplatform.com:443/wf_1-a?sig=Ab_c-9&api-version=1&route=07&pa=yes&",
    ),
    (
        "discord",
        {"url": "https://discord.com/api/webhooks/12/ab-c_D"},
        "discord.com",
        "discord://12/ab-c_D/?",
    ),
    (
        "mattermost",
        {"url": "https://chat.example.org/hooks/abc"},
        "chat.example.org",
        "mmosts://chat.example.org:443/abc?",
    ),
    ("mattermost", {"url": "https://example.org/chat/hooks/abc"}, "example.org", "mmosts://example.org:443/chat/abc?"),
    ("telegram", {"token": "12345:" + "a" * 35, "chat": "-100123"}, "api.telegram.org", "tgram://12345:aaaa"),
    (
        "matrix",
        {"host": "matrix.example.org", "token": "syt/a+b@c", "room": "!r:example.org"},
        "matrix.example.org",
        "matrixs://syt%2Fa%2Bb%40c@matrix.example.org/%21r%3Aexample.org?",
    ),
    ("ntfy", {"host": "ntfy.sh", "topic": "lab_1"}, "ntfy.sh", "ntfys://ntfy.sh/lab_1?"),
]
BAD: list[tuple[str, dict[str, str]]] = [
    ("webhook", {"url": "http://hooks.example.org/"}),
    ("webhook", {"url": "https://10.0.0.1/"}),
    ("slack", {"url": "https://hooks.slack.com.evil.example/services/T/B/x"}),
    ("slack", {"url": SLACK + "?to=x"}),
    ("slack", {"url": SLACK + "\nx"}),
    ("discord", {"url": "https://discord.com/api/webhooks/12/../x"}),
    ("teams", {"url": "https://example.org/workflows/x"}),
    ("teams", {"url": TEAMS.replace("prod-7.westeurope.logic.azure.com", "logic.azure.com.example.org")}),
    ("teams", {"url": f"{TEAMS}&template=/home/portal/registry_key"}),
    ("teams", {"url": f"{TEAMS}&%74emplate=http%3A%2F%2F10.0.0.1%2F"}),
    ("teams", {"url": f"{TEAMS};template=/etc/hosts"}),
    ("teams", {"url": f"{TEAMS}&verify=no"}),
    ("teams", {"url": f"{TEAMS}&rto=29"}),
    ("teams", {"url": f"{TEAMS}&wrap=no"}),
    ("teams", {"url": f"{TEAMS}&:token=x"}),
    ("teams", {"url": f"{TEAMS}&sig=other"}),
    ("teams", {"url": TEAMS.replace("Ab_c-9", "a%2Fb%3Ftemplate%3D")}),
    ("teams", {"url": TEAMS.replace("&sig=Ab_c-9", "")}),
    ("teams", {"url": TEAMS.replace("wf_1-a", "wf%3Ftemplate=x")}),
    ("slack", {"url": SLACK + "?template=/etc/hosts"}),
    ("slack", {"url": SLACK + "/"}),
    ("discord", {"url": "https://discord.com/api/webhooks/12/ab?template=/etc/hosts"}),
    ("mattermost", {"url": "https://chat.example.org/hooks/abc?verify=no"}),
    ("mattermost", {"url": "https://chat.example.org/hooks/abc&verify=no"}),
    ("apprise", {"url": "slack://T000/B000/abc?template=/srv/note.json"}),
    ("apprise", {"url": "workflows://h.logic.azure.com/wf/sig?TEMPLATE=/srv/note.json"}),
    ("apprise", {"url": "fcm://project@key/device?image=no&%6Beyfile=/srv/key.json"}),
    ("apprise", {"url": "vapid://me@example.org/a?subfile=/srv/s.json"}),
    ("apprise", {"url": "mailtos://u:p@example.org;pgpkey=/srv/key.asc"}),
    ("apprise", {"url": "pover://user@token?a=1&verify=no"}),
    ("apprise", {"url": "pover://user@token?+verify=no"}),
    ("apprise", {"url": "pover://user@token?cto=29&retry=9"}),
    ("mattermost", {"url": "https://chat.example.org/other/abc"}),
    ("mattermost", {"url": "https://10.0.0.1/hooks/abc"}),
    ("telegram", {"token": "12345:short", "chat": "1"}),
    ("telegram", {"token": "12345:" + "a" * 35, "chat": "1/../x"}),
    ("matrix", {"host": "localhost", "token": "syt_secret", "room": "!r:example.org"}),
    ("matrix", {"host": "matrix.example.org:8448", "token": "syt_secret", "room": "!r:example.org"}),
    ("matrix", {"host": "matrix.example.org/x", "token": "syt_secret", "room": "!r:example.org"}),
    ("ntfy", {"host": "127.0.0.1", "topic": "x"}),
    ("ntfy", {"host": "ntfy.sh", "topic": "a/b"}),
    ("apprise", {"url": "syslog://"}),
    ("apprise", {"url": "dbus://"}),
    ("apprise", {"url": "file:///etc/passwd"}),
    ("apprise", {"url": "no url"}),
]


@pytest.mark.parametrize(("type", "config", "place", "begins"), GOOD)
def test_what_is_filled_in_leads_to_its_service(type: str, config: dict[str, str], place: str, begins: str) -> None:
    target = TYPES[type].target(config, ())
    assert target.place == place and target.url.startswith(begins)


@pytest.mark.parametrize(("type", "config"), BAD)
def test_what_is_wrong_or_hostile_is_refused_at_its_field(type: str, config: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        TYPES[type].target(config, ())
    assert caught.value.field in config


def test_a_refused_parameter_is_named_with_those_that_a_url_has() -> None:
    with pytest.raises(Refused, match=r"“template”.* api-version, sp, sv, sig only"):
        TYPES["teams"].target({"url": f"{TEAMS}&template=/etc/hosts"}, ())


def test_a_template_that_is_no_file_stays_possible() -> None:
    assert TYPES["apprise"].target({"url": "sendgrid://k:u@example.org?template=welcome"}, ()).schemes == ("sendgrid",)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of plugins that are not used here
def test_the_options_of_apprise_that_name_files_are_all_known() -> None:
    """Those of the release that is installed: its plugins read files where they make an attachment of what was typed."""
    plugins = NotificationManager()
    readers = {
        scheme: set(plugins[scheme].template_args) & {"template", "keyfile", "subfile", "pgpkey", "path", "file", "key"}
        for scheme in plugins.schemas()
        if scheme not in NEVER and "AppriseAttachment(asset" in _sources(plugins[scheme])
    }
    assert {"slack", "discord", "tgram", "workflows", "fcm", "vapid"} <= set(readers)
    for scheme, names in readers.items():
        for name in names - {"key", "path"}:  # parts of an address
            with pytest.raises(Refused):
                TYPES["apprise"].target({"url": f"{scheme}://a/b?{name}=/srv/x"}, ())
    everywhere = {name for scheme in plugins.schemas() for name in NotifyBase.template_args}
    assert everywhere - CONNECTION_OPTIONS == {"emojis", "format", "optional", "overflow", "tz"}


def _sources(plugin: type) -> str:
    """Return the sources of a plugin, its bases and what its package has beside it."""
    modules = [inspect.getmodule(each) for each in plugin.__mro__ if each.__module__.startswith("apprise.plugins.")]
    beside = [each for module in modules if module for each in vars(module).values() if inspect.ismodule(each)]
    ours = {each for each in [*modules, *beside] if each and each.__name__.startswith("apprise.")}
    return "".join(inspect.getsource(each) for each in ours)


def test_a_server_of_the_local_network_works_once_an_admin_allows_it() -> None:
    url = {"url": "http://chat:8065/hooks/abc"}
    assert TYPES["mattermost"].target(url, {"chat"}).url.startswith("mmost://chat:8065/abc")


def test_a_channel_of_an_earlier_release_that_is_no_longer_permitted_is_paused_with_a_notice(
    alice: User, receiver: Receiver
) -> None:
    channel, _ = services.add_channel(alice, "teams", "ours", {"url": TEAMS})
    Channel.objects.update(sealed_config=seal(json.dumps({"url": f"{TEAMS}&template=/etc/hosts"})))
    services.send_test(alice, channel)
    deliver(sender=receiver)
    channel.refresh_from_db()
    assert not receiver.messages and channel.paused_at is not None and "“template”" in channel.last_error
    [notice] = Notice.objects.filter(user=alice, kind="trouble")
    assert "Leave it out" in notice_text(notice.content).text


def test_secrets_are_encrypted_and_no_page_shows_them(alice: User) -> None:
    channel, _ = services.add_channel(alice, "slack", "ours", {"url": SLACK})
    assert "abcdefABCDEF" not in channel.sealed_config
    assert json.loads(unseal(channel.sealed_config) or "")["url"] == SLACK
    client = Client()
    client.force_login(alice)
    html = client.get("/accounts/notifications/").content.decode()
    assert "ours" in html and "abcdefABCDEF" not in html


def test_the_secret_of_a_webhook_is_shown_once(alice: User) -> None:
    client = Client()
    client.force_login(alice)
    made = client.post("/accounts/notifications/channels/new/webhook", {"url": "https://hooks.example.org/x"})
    assert "whsec_" in made.content.decode()
    assert "whsec_" not in client.get("/accounts/notifications/").content.decode()


def test_only_admins_enter_raw_urls_with_schemes_that_are_enabled(alice: User) -> None:
    ada = world.make_user("ada", is_staff=True)
    services.set_settings(ada, settings_with(channel_types=["apprise"], apprise_schemes=["pover"]))
    with pytest.raises(Refused):
        services.add_channel(alice, "apprise", "", {"url": "pover://user@token"})
    with pytest.raises(Refused):
        services.add_channel(ada, "apprise", "", {"url": "json://example.org"})
    services.add_channel(ada, "apprise", "", {"url": "pover://user@token"})


def settings_with(**values: Any) -> dict[str, Any]:
    usual = {"allowed_hosts": [], "apprise_schemes": [], "channel_types": [], "long_wait_minutes": 30}
    return {**usual, "log_lines_leave": True, **values}


@pytest.mark.parametrize("scheme", sorted(NEVER))
def test_no_admin_can_enable_what_acts_on_the_machine(scheme: str) -> None:
    ada = world.make_user("ada", is_staff=True)
    with pytest.raises(Refused):
        services.set_settings(ada, settings_with(apprise_schemes=[scheme]))


@pytest.mark.parametrize("host", ["https://x", "a b", "x/y", "x@y", "*.example.org", "x:80"])
def test_only_names_and_addresses_are_allowed_hosts(host: str) -> None:
    ada = world.make_user("ada", is_staff=True)
    with pytest.raises(Refused):
        services.set_settings(ada, settings_with(allowed_hosts=[host]))


def test_a_type_that_an_admin_switches_off_sends_nothing_more(alice: User, receiver: Receiver) -> None:
    channel, _ = services.add_channel(alice, "slack", "ours", {"url": SLACK})
    services.send_test(alice, channel)
    NotificationSettings.objects.create(pk=1, chosen=True, channel_types=["webhook"])
    deliver(sender=receiver)
    assert not receiver.messages and "switched off" in Delivery.objects.get().error
    with pytest.raises(Refused):
        services.add_channel(alice, "slack", "ours", {"url": SLACK})


def test_a_test_goes_by_the_channel_and_switches_it_on_again(alice: User, receiver: Receiver) -> None:
    channel, _ = services.add_channel(alice, "slack", "ours", {"url": SLACK})
    services.pause(channel)
    services.send_test(alice, channel)
    deliver(sender=receiver)
    [sent] = receiver.chats
    assert (
        sent.url.startswith("slack://T000/B000/abcdefABCDEF/?") and sent.schemes == ("slack",) and SLACK in sent.secrets
    )
    channel.refresh_from_db()
    assert channel.paused_at is None and channel.last_sent_at is not None


def test_tests_and_channels_are_limited(alice: User) -> None:
    cache.clear()
    for number in range(services.MAX_CHANNELS):
        services.add_channel(alice, "slack", str(number), {"url": SLACK})
    with pytest.raises(Refused):
        services.add_channel(alice, "slack", "one more", {"url": SLACK})
    channel = Channel.objects.all()[0]
    for _ in range(services.MAX_TESTS):
        services.send_test(alice, channel)
    with pytest.raises(Refused):
        services.send_test(alice, channel)


def test_settings_that_can_no_longer_be_read_are_named(alice: User, receiver: Receiver) -> None:
    channel, _ = services.add_channel(alice, "slack", "ours", {"url": SLACK})
    Channel.objects.update(sealed_config="gAAAAA")
    services.send_test(alice, channel)
    deliver(sender=receiver)
    assert not receiver.messages and "can no longer be read" in Delivery.objects.get().error
    client = Client()
    client.force_login(alice)
    assert "Remove it and add it again" in client.get("/accounts/notifications/").content.decode()
