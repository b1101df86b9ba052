"""Retry by the class of the failure, at the right time."""

from scrapy_ha.retry.classify import FailureClass, classify_exception, classify_status
from scrapy_ha.retry.middleware import ClassifiedRetryMiddleware
from scrapy_ha.retry.policies import register
from scrapy_ha.retry.policy import Backoff, Failed, GiveUp, Never, Retry, RetryPolicy
from scrapy_ha.retry.retry_after import parse_retry_after

__all__ = [
    "Backoff",
    "ClassifiedRetryMiddleware",
    "Failed",
    "FailureClass",
    "GiveUp",
    "Never",
    "Retry",
    "RetryPolicy",
    "classify_exception",
    "classify_status",
    "parse_retry_after",
    "register",
]
