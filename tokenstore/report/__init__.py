"""Layer 6: a store or a plan as one self-contained HTML file: no network, no server, no other file.

    store_report.py, plan_report.py    the content of a page as a frozen dataclass; `report --json` prints it
    plan_page.py                       the page of a plan; the page of a store needs only its template
    charts.py                          turns numbers into the lines and ticks of a chart
    page.py                            renders templates and makes any text safe in them
    assets/                            the templates (jinja2), one style sheet, one script

A page contains untrusted text. One function, `page.render`, passes it through `text.safe` and escapes it. The page's
Content-Security-Policy allows only our script, by its hash.
"""
