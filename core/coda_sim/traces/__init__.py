"""Job traces: files in several formats, read into rows. Nothing here knows a policy or a cluster.

Read `trace` (the values), `fields` and `text_lines` (checked text), then the formats `csv_formats` and `philly` (with
`json_list`), `reader` (the entry), `selection` and `request_table`.
"""
