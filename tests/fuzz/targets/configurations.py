"""A node's configuration, or a ConfigMap of them, as the agent and `config validate` read it."""

from __future__ import annotations

import yaml

from gpushare import errors
from gpushare.config import config_file, model
from kubectl_gpushare.views import config_sentences
from tests.fuzz import laws


def run(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for report in config_sentences.checked("it", text, strict=data[:1] == b"#"):
        for said in (*report.warnings, *([report.problem] if report.problem else [])):
            laws.check_sentence(said)
    try:
        config = config_file.read(text)
    except errors.ConfigError as error:
        laws.check_sentence(error)
        return
    written = yaml.safe_dump(model.as_document(config))
    assert model.as_document(config_file.read(written)) == model.as_document(config)
