from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import TestCase

from shop.asgi import application


class PageTest(TestCase):
    async def get(self, path: str, cookie: str = "") -> int:
        headers = [(b"host", b"shop.example.com"), (b"cookie", cookie.encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": headers,
        }
        communicator = ApplicationCommunicator(application, scope)
        await communicator.send_input({"type": "http.request", "body": b""})
        start = await communicator.receive_output(30)
        await communicator.wait(30)
        return start["status"]

    async def sign_in(self, name: str, is_staff: bool) -> str:
        await self.async_client.aforce_login(
            await User.objects.acreate(username=name, is_staff=is_staff)
        )
        return f"sessionid={self.async_client.cookies['sessionid'].value}"

    async def test_only_members_of_the_staff_see_the_page(self) -> None:
        self.assertEqual(await self.get("/scheduler/"), 404)
        self.assertEqual(
            await self.get("/scheduler/", await self.sign_in("eve", is_staff=False)), 404
        )
        # the page reads the database of YAMLSCHED_DSN, not that of the tests; before yamlsched migrate it answers 503
        self.assertIn(
            await self.get("/scheduler/", await self.sign_in("ada", is_staff=True)), (200, 503)
        )
