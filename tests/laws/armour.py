"""The headers of every response: no page of ours can be framed, sniffed, scripted or left by accident."""

import re
from typing import Any

SCRIPTS = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
INLINE = re.compile(r"\son[a-z]+\s*=\s*[\"']|\sstyle\s*=\s*[\"']|javascript:", re.IGNORECASE)
ELSEWHERE = re.compile(r"""(?:src|href|action)\s*=\s*["'](?:https?:)?//(?!localhost)""", re.IGNORECASE)


def check_armour(response: Any) -> None:
    policy = {
        part.split()[0]: part.split()[1:] for part in response["Content-Security-Policy"].split(";") if part.strip()
    }
    framed = policy.get("frame-ancestors") == ["'self'"]
    if "sandbox" in policy:
        assert policy["sandbox"] == [], "it may do nothing"
        assert policy["default-src"] == ["'none'"] and not {"script-src", "form-action", "connect-src"} & set(policy)
    else:
        assert policy["default-src"] == ["'self'"]
        assert policy["object-src"] == policy["frame-ancestors"] == ["'none'"]
        assert policy["base-uri"] == policy["form-action"] == ["'self'"]
        for sources in policy.values():
            assert not set(sources) & {"'unsafe-inline'", "'unsafe-eval'", "*", "http:", "https:"}
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["X-Frame-Options"] == ("SAMEORIGIN" if framed and "sandbox" in policy else "DENY")
    assert response["Referrer-Policy"] in ("same-origin", "no-referrer")
    assert response["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in response
    if not framed and not response.streaming and "text/html" in response.get("Content-Type", ""):
        check_page(response.content.decode())


def check_page(page: str) -> None:
    """Check that a page contains nothing that its policy would refuse."""
    for attributes, code in SCRIPTS.findall(page):
        allowed = "nonce=" in attributes or 'type="application/json"' in attributes
        assert not code.strip() or allowed, "inline script"
    markup = re.sub(r"<(pre|textarea|code)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert not INLINE.search(markup), "inline handler or style"
    assert not ELSEWHERE.search(page), "it loads from elsewhere"
