"""The page at / in a real headless browser, on a scripted target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sssd.server.keys import ApiKey, KeyRing, digest_of
from sssd.server.run import Operation
from tests.helpers.browser import Page, browser, chromium
from tests.helpers.operated import Operated, operated, slowed
from tests.helpers.serving import TEXT, Lucky, scripted_model, speaker

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
KEY = "a-key-for-the-page-1"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    script = speaker(end=120)
    model = scripted_model(tmp_path_factory.mktemp("toy"), slowed(script, 0.003), Lucky(script))
    with operated(lambda: model) as started:
        yield started.ready()


def shown(page: Page, server: Operated, **window: int) -> Page:
    page.says.clear()
    page.asked.clear()
    page.show(server.url + "/", **window)
    page.until("document.getElementById('state').textContent === 'ready'")
    return page


def send(page: Page, text: str) -> None:
    page.run(f"document.getElementById('prompt').value = {text!r}, document.getElementById('ask').requestSubmit()")


def done(page: Page) -> None:
    page.until("document.querySelector('.assistant:last-of-type:not(.busy)')")


def number(page: Page, name: str) -> float:
    return float(page.run(f"document.getElementById('{name}').textContent").rstrip("%"))


def test_an_answer_shows_which_of_its_tokens_were_drafted(page: Page, server: Operated) -> None:
    shown(page, server)
    send(page, "Go on:")
    done(page)
    said = (TEXT * 2).encode()[:120].decode()
    assert (
        page.run("[...document.querySelectorAll('.assistant > span:not(.rejected)')].map(s => s.textContent).join('')")
        == said
    )
    drafted = page.run("document.querySelectorAll('.assistant > [data-source=context]:not(.rejected)').length")
    counted = page.run("[...document.querySelectorAll('#sources tbody tr')][0].innerText.split('\\t').map(Number)")
    assert 0 < drafted == counted[1] < counted[2]
    assert number(page, "accepted") == round(100 * counted[1] / counted[2])
    assert number(page, "speed") > 0
    assert number(page, "per-step") > 1
    assert (
        page.run("getComputedStyle(document.querySelector('.assistant [data-source]')).backgroundColor")
        != "rgba(0, 0, 0, 0)"
    )
    assert page.run("getComputedStyle(document.querySelector('.rejected')).display") == "none"
    page.run("document.getElementById('rejects').click()")
    assert page.run("getComputedStyle(document.querySelector('.rejected')).display") == "inline"
    page.run("document.getElementById('colours').click()")
    assert (
        page.run("getComputedStyle(document.querySelector('.assistant [data-source]')).backgroundColor")
        == "rgba(0, 0, 0, 0)"
    )


def test_the_plot_is_drawn(page: Page, server: Operated) -> None:
    shown(page, server)
    ink = (
        "(() => { const c = document.getElementById('widths'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; return d.filter((x, i) => i % 4 == 3 && x > 200).length; })()"
    )
    empty = page.run(ink)
    send(page, "Go on:")
    done(page)
    assert page.run(ink) > 2 * empty > 0


def test_the_page_asks_nobody_but_its_server_and_complains_of_nothing(page: Page, server: Operated) -> None:
    shown(page, server)
    send(page, "Go on:")
    done(page)
    assert {url.split("/")[2] for url in page.asked} == {server.url.removeprefix("http://")}
    assert page.says == []


def test_a_conversation_goes_on_and_can_be_cleared(page: Page, server: Operated) -> None:
    shown(page, server)
    for _ in range(2):
        send(page, "Go on:")
        page.until("document.querySelector('.busy')")
        page.until("!document.querySelector('.busy')")
    assert page.run("messages.map(m => m.role).join()") == "user,assistant,user,assistant"
    page.run("document.getElementById('clear').click()")
    assert page.run("document.querySelectorAll('.turn').length + messages.length") == 0


def test_an_answer_can_be_stopped(page: Page, server: Operated) -> None:
    shown(page, server)
    send(page, "Go on:")
    page.until("document.querySelectorAll('.assistant span').length > 3")
    page.run("document.getElementById('stop').click()")
    page.until("document.querySelector('.stopped')")
    page.until("document.getElementById('running').textContent === '0 of 4'")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_window(page: Page, server: Operated, width: int, dark: bool, tmp_path: Path) -> None:
    shown(page, server, width=width, dark=dark)
    send(page, "Go on: " + "x" * 300)
    done(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    back = page.run("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").removesuffix(")")
    assert (sum(map(int, back.split(","))) < 384) == dark
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5000


def test_a_refusal_is_shown_and_a_key_helps(page: Page, tmp_path: Path) -> None:
    keys = KeyRing([ApiKey("page", digest_of(KEY))])
    with operated(lambda: scripted_model(tmp_path, speaker()), Operation(keys=keys)) as server:
        shown(page, server.ready())
        send(page, "Go on:")
        page.until("document.querySelector('.error')")
        assert "no API key" in page.run("document.querySelector('.error').textContent")
        page.run(f"document.getElementById('key').value = '{KEY}'")
        send(page, "Go on:")
        done(page)
        page.until("document.querySelectorAll('.assistant span').length")
    page.until("document.getElementById('state').textContent === 'not reachable'")
