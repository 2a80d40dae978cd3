"""Who may ask for what: each rule of the page's security, over a real database."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.authentication import SimpleUser
from starlette.routing import Mount
from starlette.testclient import TestClient

from yamlsched import __version__
from yamlsched.extras import web
from yamlsched.extras.web import application, security
from yamlsched.extras.web.options import WebOptions, check_bind, parse_listen, parse_users

Visit = Callable[..., TestClient]
ROOT = Path(__file__).parents[3]
USERS = {"maria": "correct horse", "jörg": "pässword", "åsa": "grün: ja, rot: nein"}
FRAGMENT = {"Yamlsched-Fragment": "1"}
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def words(html: str) -> str:
    """Return what a page shows, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", html.partition("<main")[2]).split())


# -- headers


@pytest.mark.parametrize("path", ["/", "/no-such-page", "/static/none.css"])
def test_every_response_keeps_other_sites_and_inline_code_out(
    visit: Visit, page_dsn: str, path: str
) -> None:
    headers = visit(page_dsn).get(path).headers

    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_a_rejected_request_has_the_same_headers(visit: Visit, page_dsn: str) -> None:
    answer = visit(page_dsn).get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "default-src 'none'" in answer.headers["content-security-policy"]


# -- hosts


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8040", "127.0.0.1:8040", "[::1]:8040", "ops.example.com"]
)
def test_a_host_that_is_allowed_gets_the_page(visit: Visit, page_dsn: str, host: str) -> None:
    page = visit(page_dsn, external_url="https://ops.example.com/")
    assert page.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "ops.example.com.evil.example",
        "",
        "127.0.0.1.nip.io",
        "[::2]",
    ],
)
def test_another_host_is_rejected_so_that_no_site_can_point_its_name_here(
    visit: Visit, page_dsn: str, host: str
) -> None:
    answer = visit(page_dsn, external_url="https://ops.example.com").get(
        "/", headers={"Host": host}
    )
    assert answer.status_code == 421
    assert f"does not answer for the host &#34;{host}&#34;" in answer.text
    assert "--external-url" in answer.text


def test_hosts_that_are_listed_are_allowed(visit: Visit, page_dsn: str) -> None:
    assert (
        visit(page_dsn, hosts=["Scheduler.internal"])
        .get("/", headers={"Host": "scheduler.internal"})
        .is_success
    )


# -- authentication


@pytest.mark.parametrize(("name", "password"), list(USERS.items()))
def test_basic_authentication_lets_known_users_in(
    visit: Visit, page_dsn: str, name: str, password: str
) -> None:
    answer = visit(page_dsn, auth="basic", users=USERS).get("/", headers=basic(name, password))
    assert answer.status_code == 200
    assert f"</svg>{name}</span>" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("maria", "wrong"),
        basic("maria", ""),
        basic("nobody", ""),
        basic("", ""),
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Bearer correct horse"},
    ],
)
def test_basic_authentication_asks_everyone_else_for_a_password(
    visit: Visit, page_dsn: str, headers: dict[str, str]
) -> None:
    answer = visit(page_dsn, auth="basic", users=USERS).get("/", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Basic realm="yamlsched", charset="UTF-8"'


def test_basic_authentication_is_for_every_path(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn, auth="basic", users=USERS)
    for path in ("/", "/static/page.css", "/no-such-page"):
        for headers in ({}, basic("maria", "wrong")):
            assert page.get(path, headers=headers).status_code == 401, path


def test_a_password_in_latin_1_is_understood_too(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn, auth="basic", users=USERS)
    encoded = base64.b64encode("jörg:pässword".encode("latin-1")).decode()
    assert page.get("/", headers={"Authorization": f"Basic {encoded}"}).status_code == 200


def test_who_is_not_let_in_reads_why(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn, auth="basic", users=USERS)
    for headers, why in (
        ({}, "This page asks for a name and a password."),
        (basic("maria", "wrong"), "The name or the password is wrong."),
        (basic("nobody", "correct horse"), "The name or the password is wrong."),
    ):
        said = words(page.get("/", headers=headers).text)
        assert f"{why} Reload the page to sign in." in said


def test_pages_of_one_host_do_not_share_a_password(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn, auth="basic", users=USERS, base_path="/shop")
    for path in ("/shop/", "/"):  # as a proxy keeps the prefix, or strips it
        asked = page.get(path).headers["www-authenticate"]
        assert asked == 'Basic realm="yamlsched/shop", charset="UTF-8"'


def test_a_password_that_is_replaced_ends_no_form_and_holds_up_nobody(
    visit: Visit, page_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two tabs of maria's, one with a form, whose password is replaced meanwhile
    file = tmp_path / "users"
    file.write_text("maria:old")
    page = visit(
        page_dsn, auth="basic", users={"maria": "old"}, users_file=file, namespace="default",
        actions_dsn=page_dsn,
    )  # fmt: skip
    old, new = basic("maria", "old"), basic("maria", "new")
    assert page.get("/", headers=old).status_code == 200
    file.write_text("maria:new")
    os.utime(file, ns=(1, 1))

    # when the other tab goes on to refresh itself
    for _ in range(30):
        refreshed = page.get("/runs", headers={**old, **FRAGMENT})
        # then no dialog opens there, and this is no guess of a password
        assert refreshed.status_code == 401
        assert "www-authenticate" not in refreshed.headers
    assert "web.login_failed" not in capsys.readouterr().err

    # and a form that is sent is asked for the new password, with which the browser sends it again
    form = {"headers": {**old, **SAME_ORIGIN}, "data": {"run": "1", "payload": "{}"}}
    asked = page.post("/actions/retry", **form)  # type: ignore[arg-type]
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert "This password is no longer valid." in words(asked.text)
    form["headers"] |= new
    assert page.post("/actions/retry", **form).status_code == 422  # type: ignore[arg-type]
    # and later the old one is still no guess
    assert page.get("/", headers=new).status_code == 200
    assert "no longer valid" in words(page.get("/", headers=old).text)
    assert "web.login_failed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.0.0.9", "::ffff:10.0.0.9"),
        ("fd00::/8", "fd00::1"),
    ],
)
def test_a_user_header_counts_from_a_trusted_proxy(
    visit: Visit, page_dsn: str, trusted: str, client: str
) -> None:
    page = visit(
        page_dsn, auth="header", user_header="X-User", trust_proxy=(trusted,), client=(client, 1)
    )
    answer = page.get("/", headers={"X-User": "jörg".encode()})  # type: ignore[dict-item]
    assert answer.status_code == 200
    assert "</svg>jörg</span>" in answer.text


@pytest.mark.parametrize("client", ["10.0.0.10", "127.0.0.1", "fd00::1", "testclient"])
def test_a_user_header_from_anyone_else_is_rejected(
    visit: Visit, page_dsn: str, client: str
) -> None:
    page = visit(page_dsn, auth="header", trust_proxy=("10.0.0.9",), client=(client, 1))
    answer = page.get("/", headers={"X-Forwarded-User": "maria", "X-Forwarded-For": "10.0.0.9"})
    assert answer.status_code == 403
    assert f"{client} is not a trusted one" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Forwarded-User", "maria"), ("X-Forwarded-User", "root")],
        [("X-Forwarded-User", " ")],
        [("X-Forwarded-User", "a" * 201)],
        [("X_Forwarded_User", "root")],
        [("X-Forwarded-User", b"m\xc2\x85aria")],
    ],
)
def test_a_trusted_proxy_must_name_exactly_one_valid_user(
    visit: Visit, page_dsn: str, headers: list[tuple[str, Any]]
) -> None:
    page = visit(page_dsn, auth="header", trust_proxy=("127.0.0.1",))
    assert page.get("/", headers=headers).status_code == 403


def test_without_authentication_a_user_header_names_nobody(visit: Visit, page_dsn: str) -> None:
    answer = visit(page_dsn).get("/", headers={"X-Forwarded-User": "root"})
    assert answer.status_code == 200
    assert 'class="user"' not in answer.text


# -- forms


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://ops.example.com"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://ops.example.com"},
        {"Origin": "https://ops.example.com:444"},
        {"Origin": "https://ops.example.com.evil.example"},
        {"Referer": "https://ops.example.com/"},
    ],
)
def test_a_form_of_another_site_changes_nothing(
    visit: Visit, page_dsn: str, headers: dict[str, str]
) -> None:
    page = visit(page_dsn, actions_dsn=page_dsn, external_url="https://ops.example.com/scheduler")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = page.request(method, "/", headers=headers)
        assert answer.status_code == 403, method
        assert "does not come from a page of yamlsched" in answer.text


@pytest.mark.parametrize(
    ("external_url", "headers"),
    [
        (None, SAME_ORIGIN),
        (None, {"Origin": "http://localhost"}),
        ("https://ops.example.com/scheduler", SAME_ORIGIN),
        ("https://ops.example.com/scheduler", {"Origin": "https://ops.example.com"}),
        ("https://Ops.Example.com:443", {"Origin": "https://ops.example.com"}),
        ("http://[::1]:8040", {"Origin": "http://[::1]:8040"}),
    ],
)
def test_a_form_of_our_own_passes(
    visit: Visit, page_dsn: str, external_url: str | None, headers: dict[str, str]
) -> None:
    page = visit(page_dsn, actions_dsn=page_dsn, external_url=external_url)
    assert page.post("/", headers=headers).status_code == 405  # the page has no action


def test_without_a_dsn_for_actions_every_form_is_refused(visit: Visit, page_dsn: str) -> None:
    answer = visit(page_dsn).post("/", headers=SAME_ORIGIN)
    assert answer.status_code == 403
    assert "set YAMLSCHED_ACTIONS_DSN" in words(answer.text)


def test_read_only_refuses_every_form_even_with_a_dsn_for_actions(
    visit: Visit, page_dsn: str
) -> None:
    answer = visit(page_dsn, actions_dsn=page_dsn, read_only=True).post("/", headers=SAME_ORIGIN)
    assert answer.status_code == 403
    assert "started with --read-only" in words(answer.text)


# -- the base path


@pytest.mark.parametrize("path", ["/scheduler/", "/"])
def test_a_proxy_may_keep_or_strip_the_prefix(visit: Visit, page_dsn: str, path: str) -> None:
    page = visit(page_dsn, base_path="/scheduler")
    html = page.get(path).text
    assert '<a class="brand" href="/scheduler/">' in html
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', html)
    assert links
    assert all(link.startswith("/scheduler/") for link in links)
    for link in links:
        if "/static/" in link:
            assert page.get(link).is_success
            assert page.get(link.removeprefix("/scheduler")).is_success


def test_the_prefix_without_a_slash_leads_to_the_first_page(visit: Visit, page_dsn: str) -> None:
    answer = visit(page_dsn, base_path="/scheduler").get("/scheduler")
    assert (answer.status_code, answer.headers["location"]) == (307, "/scheduler/")


def test_a_path_that_only_starts_like_the_prefix_is_not_below_it(
    visit: Visit, page_dsn: str
) -> None:
    assert visit(page_dsn, base_path="/scheduler").get("/schedulers/").status_code == 404


def test_the_page_can_be_mounted_into_another_application(page_dsn: str) -> None:
    outer = Starlette(routes=[Mount("/ops/jobs", web.app(page_dsn, auth="none"))])
    with TestClient(outer, base_url="http://localhost") as page:
        answer = page.get("/ops/jobs/")
        assert '<a class="brand" href="/ops/jobs/">' in answer.text
        [style] = re.findall(r'href="([^"]*\.css\?\w+)"', answer.text)
        assert page.get(style).is_success


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_mounted_page_serves_nobody_whom_the_application_has_not_authenticated(
    page_dsn: str, method: str
) -> None:
    page = web.app(page_dsn, actions_dsn=page_dsn)

    async def sign_in(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and b"ada" in dict(scope["headers"]).get(b"cookie", b""):
            scope["user"] = SimpleUser("ada")
        await page(scope, receive, send)

    for mounted in (page, sign_in):
        with TestClient(
            Starlette(routes=[Mount("/jobs", mounted)]), base_url="http://localhost"
        ) as client:
            answer = client.request(
                method, "/jobs/actions/enqueue", headers={"Origin": "http://localhost"}
            )
            assert answer.status_code == 403
            assert "users whom the application around it has authenticated" in answer.text
            assert "enqueue" not in answer.text.lower()
    with TestClient(
        Starlette(routes=[Mount("/jobs", sign_in)]), base_url="http://localhost"
    ) as client:
        client.cookies.set("user", "ada")
        assert client.get("/jobs/").status_code == 200


class Browser(NamedTuple):
    """A client of a page with two users; ``client`` is its address."""

    page: Any
    address: str

    def status(self, name: str, password: str) -> int:
        transport = TestClient(self.page, base_url="http://localhost", client=(self.address, 1))
        answer = transport.get("/static/none.css", auth=(name, password))
        return answer.status_code

    def wait(self, name: str, password: str) -> int:
        transport = TestClient(self.page, base_url="http://localhost", client=(self.address, 1))
        return int(transport.get("/", auth=(name, password)).headers.get("retry-after", 0))


def quick_scrypt(content: bytes, salt: bytes, **cost: int) -> bytes:
    """A hash as long as that of scrypt, which is slow on purpose."""
    return hashlib.sha512(salt + content).digest()


@pytest.fixture
def at(
    page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[str], Browser], list[float]]:
    """Makes browsers at an address, all of one page, and the clock of its logins."""
    clock = [0.0]
    monkeypatch.setattr(security, "_monotonic", lambda: clock[0])
    monkeypatch.setattr(security.hashlib, "scrypt", quick_scrypt)
    users = {"maria": "secret", "bob": "b"}
    page = application.build(
        WebOptions(dsn=page_dsn, namespace="default", auth="basic", users=users)
    )
    return (lambda address: Browser(page, address)), clock


def test_after_wrong_passwords_a_name_must_wait_and_each_one_is_logged(
    at: tuple[Callable[[str], Browser], list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    browser, clock = at
    maria = browser("10.0.0.9")

    assert [maria.status("maria", "wrong") for _ in range(6)] == [401] * 6
    # from the sixth on, each next one waits, even a right one, and twice as long each time
    assert maria.status("maria", "secret") == 429
    waits = []
    for _ in range(8):
        waits.append(maria.wait("maria", "wrong"))
        clock[0] += waits[-1]
        assert maria.status("maria", "wrong") == 401
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    logged = [line for line in capsys.readouterr().err.splitlines() if "web.login_failed" in line]
    assert len(logged) == 6 + 8
    assert "user=maria client=10.0.0.9" in logged[0]
    assert "wrong" not in "".join(logged)

    # a right password ends it
    clock[0] += 60
    assert maria.status("maria", "secret") == 404
    assert maria.status("maria", "wrong") == 401


def test_the_login_of_one_name_does_not_free_another(
    at: tuple[Callable[[str], Browser], list[float]],
) -> None:
    browser, _ = at
    shared = browser("10.0.0.9")

    seen = []
    for _ in range(8):
        seen.append(shared.status("maria", "guess"))
        assert shared.status("bob", "b") == 404

    assert seen == [401] * 6 + [429] * 2


def test_wrong_passwords_of_one_name_hold_up_nobody_else_at_that_address(
    at: tuple[Callable[[str], Browser], list[float]],
) -> None:
    browser, _ = at
    assert [browser("10.0.0.9").status("maria", "guess") for _ in range(8)][-1] == 429
    assert browser("10.0.0.9").status("bob", "b") == 404


def test_who_has_logged_in_goes_on_while_others_guess(
    at: tuple[Callable[[str], Browser], list[float]],
) -> None:
    browser, _ = at
    assert browser("10.0.0.9").status("maria", "secret") == 404
    for number in range(40):
        browser(f"10.0.1.{number}").status("maria", "guess")

    # guesses from many addresses wait too
    assert browser("10.0.2.1").status("maria", "guess") == 429
    assert browser("10.0.0.9").status("maria", "secret") == 404
    assert browser("10.0.0.8").status("maria", "secret") == 404


def test_each_login_that_is_not_known_costs_one_scrypt_whoever_is_named(
    page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = security.SCRYPT + "00" * 16 + "$" + "00" * 64
    users = {"plain": "secret", "hashed": hashed}
    page = application.build(
        WebOptions(dsn=page_dsn, namespace="default", auth="basic", users=users)
    )
    computed: list[bytes] = []
    scrypt = security.hashlib.scrypt
    monkeypatch.setattr(
        security.hashlib,
        "scrypt",
        lambda content, **given: computed.append(content) or scrypt(content, **given),
    )

    counts = []
    for name in ("plain", "hashed", "nobody"):
        computed.clear()
        assert Browser(page, "10.0.0.9").status(name, "wrong") == 401
        counts.append(len(computed))

    assert counts == [1, 1, 1]


@pytest.mark.parametrize("user", ["maria, root", "maria,root"])
def test_two_users_in_one_header_are_refused(visit: Visit, page_dsn: str, user: str) -> None:
    page = visit(page_dsn, auth="header", trust_proxy=("10.0.0.0/8",), client=("10.0.0.9", 1))
    assert page.get("/", headers={"X-Forwarded-User": user}).status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost:8141@evil.com", "localhost:99999x", "[::1]evil.com", "localhost/x", ""]
)
def test_a_host_header_that_is_not_a_name_and_a_port_is_refused(
    visit: Visit, page_dsn: str, host: str
) -> None:
    assert visit(page_dsn).get("/", headers={"Host": host}).status_code == 421


# -- options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"auth": "basic"}, "YAMLSCHED_WEB_USERS"),
        ({"auth": "header"}, "--trust-proxy"),
        ({"auth": "magic"}, "none, basic or header"),
        ({"auth": "header", "trust_proxy": ("proxy.internal",)}, "is not an address"),
        ({"base_path": "scheduler"}, "write for example /scheduler"),
        ({"base_path": "/"}, "write for example /scheduler"),
        ({"base_path": "/a/"}, "write for example /scheduler"),
        ({"base_path": "/../x"}, "write for example /scheduler"),
        ({"base_path": '/a"b'}, "write for example /scheduler"),
        ({"base_path": "/runs"}, "starts like a page"),
        ({"external_url": "ops.example.com"}, "is not a URL"),
        ({"external_url": "https://u:p@ops.example.com"}, "is not a URL"),
        ({"external_url": "https://ops.example.com:x"}, "is not a URL"),
        ({"external_url": "javascript:alert(1)"}, "is not a URL"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WebOptions(dsn="", **given)


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.9.1:0", "unix:/run/x"]
)
def test_a_bind_that_only_this_host_reaches_needs_no_authentication(listen: str) -> None:
    check_bind(parse_listen(listen), WebOptions(dsn=""))


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "10.0.0.5:1", "[::]:1", "[fd00::1]:1", "ops.example.com:1"]
)
def test_any_other_bind_is_refused_without_authentication(listen: str) -> None:
    with pytest.raises(ValueError, match="--auth none lets everyone in"):
        check_bind(parse_listen(listen), WebOptions(dsn="", external_url="https://ops.example.com"))
    check_bind(
        parse_listen(listen),
        WebOptions(dsn="", auth="basic", users=USERS, external_url="https://ops.example.com"),
    )


def test_a_bind_on_every_address_needs_the_name_that_browsers_use() -> None:
    with pytest.raises(ValueError, match="--external-url"):
        check_bind(parse_listen("0.0.0.0:1"), WebOptions(dsn="", auth="basic", users=USERS))


@pytest.mark.parametrize(
    "text",
    ["8040", ":8040", "localhost", "localhost:", "localhost:65536", "::1:80", "unix:", "a:-1"],
)
def test_an_address_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write (HOST:PORT|for example)"):
        parse_listen(text)


@pytest.mark.parametrize(
    "text", ["maria", "maria:", ":x", "maria:a\nmaria:b", "", "# only a comment"]
)
def test_users_that_are_not_valid_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ValueError, match="USERS") as error:
        parse_users(text, "USERS")
    assert "maria" not in str(error.value)


def test_a_password_may_contain_colons() -> None:
    assert parse_users("# team\nmaria:a:b c\n\njonas:d\n", "x") == {"maria": "a:b c", "jonas": "d"}


def test_secrets_are_not_in_the_representation_of_the_options() -> None:
    text = repr(
        WebOptions(
            dsn="postgresql://a:hunter2@b/c",
            actions_dsn="postgresql://a:hunter3@b/c",
            users={"a": "hunter4"},
        )
    )
    assert "hunter" not in text


# -- what is shown to whom, and kept where


def test_a_stranger_sees_neither_the_other_pages_nor_the_version(
    visit: Visit, page_dsn: str
) -> None:
    page = visit(page_dsn, auth="basic", users={"maria": "secret"})
    known, stranger = page.get("/nothing", auth=("maria", "secret")), page.get("/")
    assert (known.status_code, stranger.status_code) == (404, 401)
    for part in ("<nav", __version__):
        assert part in known.text
        assert part not in stranger.text
    assert "<nav" not in page.get("/", headers={"Host": "evil.example"}).text


def test_browsers_keep_no_page_for_which_one_must_sign_in(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn, auth="basic", users={"maria": "secret"}, namespace="default")
    fragment = {"Yamlsched-Fragment": "1"}  # without the footer, which has the time
    first = page.get("/runs", auth=("maria", "secret"), headers=fragment)
    assert first.headers["cache-control"] == "no-store"
    # the script that refreshes a page keeps the tag by itself
    known = {**fragment, "If-None-Match": first.headers["etag"]}
    again = page.get("/runs", auth=("maria", "secret"), headers=known)
    assert again.status_code == 304
    assert (
        visit(page_dsn, namespace="default").get("/runs").headers["cache-control"]
        == "private, no-cache"
    )


def test_an_outage_is_logged_once_in_ten_seconds_however_many_ask(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = visit("postgresql://reader@127.0.0.1:1/app", namespace="default")
    now = [1000.0]
    monkeypatch.setattr(application.time, "monotonic", lambda: now[0])
    assert [page.get("/").status_code for _ in range(20)] == [503] * 20
    now[0] += application.REPORT_SECONDS
    assert page.get("/").status_code == 503
    assert capsys.readouterr().err.count("web.unavailable") == 2


def a_hash(password: str) -> str:
    """Return a hash as the command of docs/web.md prints it."""
    command = re.search(r"python3 -c '(.*)'", (ROOT / "docs/web.md").read_text())[1]  # type: ignore[index]
    done = subprocess.run(
        [sys.executable, "-c", command.replace("getpass.getpass()", repr(password))],
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()


def test_a_hash_is_a_password_and_a_changed_file_counts_without_a_restart(
    visit: Visit, page_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    file.write_text(f"maria:{a_hash('correct:horse')}\n")
    page = visit(
        page_dsn, auth="basic", users=parse_users(file.read_text(), "users"), users_file=file
    )

    def statuses(*pairs: tuple[str, str]) -> list[int]:
        return [page.get("/", headers=basic(*pair)).status_code for pair in pairs]

    right = ("maria", "correct:horse")
    hash_itself = ("maria", file.read_text().strip().partition(":")[2])
    assert (
        statuses(right, right, ("maria", "wrong"), hash_itself, ("nobody", "correct:horse"))
        == [200] * 2 + [401] * 3
    )

    # another password, and another user
    file.write_text("maria:new\njens:secret\n")
    os.utime(file, ns=(1, 1))
    assert statuses(right, ("maria", "new"), ("jens", "secret")) == [401, 200, 200]

    # an invalid file changes nothing
    file.write_text("maria:$scrypt$00$11\n")
    os.utime(file, ns=(2, 2))
    assert statuses(("jens", "secret"), ("jens", "secret")) == [200, 200]
    logged = capsys.readouterr().err
    assert logged.count("web.users_not_read") == 1
    assert "the hash is not valid" in logged
