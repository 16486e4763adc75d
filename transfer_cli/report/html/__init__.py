"""The parts of a report's page: charts, tables and words; `report.page` puts them together."""
