"""Report on a model as an HTML page: graph coloured by time, kernels at every stage, roofline,
memory.

report = collect("model.onnx", target="cpu", threads=2)
write_page(report, "report.html")

The page is self-contained. Needs the extra `report`.
"""

from tilewright.report.charts import check_charts
from tilewright.report.collect import Report, collect
from tilewright.report.page import write_page
from tilewright.report.tuning import write_tuning_page
