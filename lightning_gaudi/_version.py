"""The version of this package, and where its documents are."""

__version__ = "0.1.0"

SITE = ""
"""The address of the documents' site, with a slash at its end; empty as long as there is none.

`[project.urls]`, the site itself and every message that names a page read it here.
"""

REPOSITORY = ""
"""The address of the sources, with a slash at its end; empty as long as there is none."""


def name_page(title: str, path: str) -> str:
    """Returns how a message names a page of the documents: by its address, or else by its title.

    Args:
        title: The page's first heading.
        path: Its file below `docs/`, without `.md`, and a heading, as in "reference/rules#refused".
    """
    page, _, heading = path.partition("#")
    address = f"{SITE}{page}/" + (f"#{heading}" if heading else "")
    return address if SITE else f'"{title}" in the documentation'
