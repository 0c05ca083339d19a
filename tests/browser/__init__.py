"""Tests that drive the app in Chromium; they need a chromium on the machine."""
