"""A model as one page: its graph coloured by time, every kernel at every stage, roofline, memory.

report = collect("model.onnx", target="cpu", threads=2)
write_page(report, "report.html")

The page is one file that asks for nothing else. Needs the extra `report`.
"""

from tilewright.report.charts import check_charts
from tilewright.report.collect import Report, collect
from tilewright.report.page import write_page
from tilewright.report.tuning import write_tuning_page
