"""Routes of the pages: ask the services, build the page object, render."""

from __future__ import annotations

from fastapi import APIRouter

from app.web import account

router = APIRouter(include_in_schema=False)
router.include_router(account.router)
