"""The application, and yamlsched's page below /scheduler for members of the staff."""

import os
from io import BytesIO
from typing import Any

from django.contrib.auth import aget_user
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest

import yamlsched.web

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
site = get_asgi_application()
page = yamlsched.web.app(
    os.environ["YAMLSCHED_DSN"], hosts=["shop.example.com"], base_path="/scheduler"
)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/scheduler/"):
        request = ASGIRequest(scope, BytesIO())
        SessionMiddleware(lambda request: None).process_request(request)
        user = await aget_user(request)
        if user.is_staff:
            await page({**scope, "user": user}, receive, send)
            return
    await site(scope, receive, send)  # for others, /scheduler does not exist
