"""What pages share: storage of uploads, jobs, forms, sections. Nothing here is a page."""
