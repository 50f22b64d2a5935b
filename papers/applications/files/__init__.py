"""Applications that people write: what their files hold, read, checked and written."""
