"""The tiering connector: runs inside vLLM's processes and never imports `app`.

`config`, `sizing` and `metric_names` import the standard library alone, so that the deck can use
them without torch or vllm.
"""
