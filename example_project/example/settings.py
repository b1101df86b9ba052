BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"

# High availability: this line is all.
ADDONS = {"scrapy_ha.Addon": 500}
