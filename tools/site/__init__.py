"""The documentation as a site: ``docs/`` by Sphinx and MyST, in a folder that needs no network to be read."""
