"""Sinks: what shows a run's records beside records.jsonl. One module each; `recorder.py` opens them."""
