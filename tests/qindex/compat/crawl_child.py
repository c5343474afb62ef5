"""A crawl of a local site: ``python -m tests.qindex.compat.crawl_child URL JOBDIR LOG [OLD]``.

Each page whose callback ran to its end is a line of LOG. Pages are of many domains, for all that
Scrapy knows. With OLD the spider lacks the callback of every third page, as a version of it does in
which that has another name.
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
    third = "parse_third"

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(self.url, self.parse)

    def parse(self, response: Any) -> Iterator[Any]:
        for link in response.css("a::attr(href)").getall():
            page = int(link.rpartition("/")[2])
            callback = getattr(self, self.third) if page % 3 == 0 else self.parse
            slot = f"domain-{page % 40}"
            yield response.follow(
                link, callback, priority=len(link) % 3, meta={"download_slot": slot}
            )
        with open(self.log_path, "a") as log:
            log.write(response.url + "\n")

    def parse_third(self, response: Any) -> Iterator[Any]:
        yield from self.parse(response)


def main() -> None:
    url, job, log = sys.argv[1:4]
    if sys.argv[4:]:
        SiteSpider.third = "parse_each_third"
        setattr(SiteSpider, SiteSpider.third, SiteSpider.parse_third)
        del SiteSpider.parse_third
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
