"""Results as pages for a browser: each one file that needs no network and no server."""
