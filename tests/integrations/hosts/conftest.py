"""Scripts in own_code run in processes of their own, with a host: pytest must not import them for doctests."""

collect_ignore_glob = ["own_code/*"]
