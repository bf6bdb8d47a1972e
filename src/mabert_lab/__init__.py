"""The lab of mabert: benchmarks, studies, the report and the demo. It measures the library, which never imports it."""
