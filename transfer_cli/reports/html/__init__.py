"""The parts of a report's page: charts, tables and words; `reports.page` puts them together."""
