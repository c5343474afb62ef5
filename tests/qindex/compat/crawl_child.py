"""A crawl of a local site: ``python -m tests.qindex.compat.crawl_child URL JOBDIR LOG``.

Each page whose callback ran to its end is a line of LOG.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess


class SiteSpider(scrapy.Spider):
    name = "site"
    url = ""
    log_path = ""

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(self.url, self.parse)

    def parse(self, response: Any) -> Iterator[Any]:
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, self.parse, priority=len(link) % 3)
        with open(self.log_path, "a") as log:
            log.write(response.url + "\n")


def main() -> None:
    url, job, log = sys.argv[1:4]
    process = CrawlerProcess(
        {
            "ADDONS": {"qindex.compat.scrapy.Addon": 0},
            "JOBDIR": job,
            "CONCURRENT_REQUESTS": 4,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
            "DOWNLOAD_DELAY": 0,
            "TELNETCONSOLE_ENABLED": False,
            "ROBOTSTXT_OBEY": False,
            "LOG_LEVEL": "INFO",
        }
    )
    process.crawl(SiteSpider, url=url, log_path=log)
    process.start()


if __name__ == "__main__":
    main()
