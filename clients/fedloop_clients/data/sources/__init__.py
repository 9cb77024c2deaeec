"""Where a site's rows lie and how they are written: each source gives them in columns, as they are, in bounded batches.

A source knows nothing of tasks. What its cells mean is said by the site's mapping and the task's schema.
"""
