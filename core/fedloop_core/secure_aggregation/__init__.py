"""What coordinator and sites share of secure aggregation: messages, transcripts, keys, shares and masks.

Bonawitz et al. 2017 (eprint 2017/281) with double masking on a complete graph, in its variant against a coordinator that does not
keep to the protocol: docs/adr/0025. Every primitive is a library's.
"""
