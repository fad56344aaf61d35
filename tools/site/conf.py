"""Sphinx's settings. It reads them from a file of this name, as names of the module."""

from airflow_provider_pawnqueue import __version__

project = "airflow-provider-pawnqueue"
version = release = __version__
extensions = ["myst_parser", "tools.site.navigation", "tools.site.sources"]

# The pages are Markdown as the code host shows it, so nothing of MyST's own is used but anchors like the host's.
myst_heading_anchors = 4
highlight_language = "text"  # blocks without a name: trees of folders, commands

html_theme = "furo"  # brings all that its pages load, and no fonts
html_title = f"pawnqueue {version}"
html_copy_source = False
html_use_index = False  # nothing here is marked for one
html_show_sourcelink = False
html_show_copyright = False
