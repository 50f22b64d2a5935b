"""Tests of server/page."""
