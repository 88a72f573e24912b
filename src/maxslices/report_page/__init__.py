"""Plans, runs and checks as HTML: pages that open from a file, and fragments for notebooks.

Everything here is made of plain data (`Plan.to_dict`, `Report.to_dict`), so that plans and reports
can show themselves, and nothing here knows how they come about.
"""
