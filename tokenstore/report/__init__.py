"""Layer 6: a store or a plan as one HTML file that needs nothing else: no network, no server, no other file.

    store_report.py, plan_report.py    what a page shows, as a frozen dataclass, which `report --json` prints
    plan_page.py                       the page of a plan; that of a store needs no more than its template
    charts.py                          numbers -> the lines and ticks of a chart
    page.py                            the templates, and what makes any text safe in them
    assets/                            the templates (jinja2), one style, one script

A page holds text that may be anything. It goes through `views.text.safe` and is escaped in one place, `page.render`, and
the page's policy lets no other script run than ours, by its hash.
"""
