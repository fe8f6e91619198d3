"""NULL in each call of the public headers, by a program that is generated from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.header_calls import ALLOWED, INCLUDE, declarations, source
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources
from tests.support.stored_modules import FOLDER

HEADERS = sorted(path.name for path in INCLUDE.glob("*.h") if path.name != "abi.h")
VALUES = {
    "constchar*": '"x"',
    "constvoid*": "memory",
    "void*": "memory",
    "aot_error_t*": "&error",
    "constaot_module_t*": "module",
    "aot_module_t*": "module",
    "aot_module_t**": "&out_module",
    "constaot_module_options_t*": "NULL",
    "constaot_program_t*": "program",
    "aot_program_t*": "program",
    "aot_program_t**": "&out_program",
    "constaot_program_options_t*": "NULL",
    "aot_program_info_t*": "&info",
    "constaot_tensor_t*": "&tensor",
    "aot_tensor_t*": "&tensor",
    "size_t*": "&number",
    "uint64_t*": "&value",
    "constchar**": "&name",
    "constint64_t*": "strides",
    "aot_variant_info_t*": "&variant",
    "aot_entry_info_t*": "&entry",
    "aot_cores_t*": "&cores",
    "constaot_cores_t*": "&cores",
    "constaot_vocabulary_t*": "vocabulary",
    "aot_vocabulary_t**": "&out_vocabulary",
    "aot_vocabulary_t*": "vocabulary",
    "aot_vocabulary_info_t*": "&words",
    "aot_decoder_t*": "&decoder",
    "constint32_t*": "tokens",
    "int32_t*": "tokens",
    "char*": "memory",
    "constfloat*": "logits",
    "constaot_render_options_t*": "NULL",
    "aot_rendered_t*": "&rendered",
    "constuint8_t*": "marks",
    "aot_sampler_t*": "sampler",
    "aot_sampler_t**": "&sampler",
    # Never used: a NULL beside it is noticed first.
    "aot_chat_t*": "(aot_chat_t *)memory",
    "constaot_chat_t*": "(const aot_chat_t *)memory",
    "aot_reply_t*": "reply",
    "constaot_reply_t*": "reply",
    "aot_reply_t**": "&out_reply",
    "aot_reply_end_t": "AOT_REPLY_CALLER",
    "aot_prefix_info_t*": "&prefix_info",
    "aot_reply_info_t*": "&reply_info",
    "constaot_reply_options_t*": "NULL",
    "aot_candidate_t*": "candidates",
    "aot_logprob_t*": "top",
    "float*": "&logprob",
    "aot_chat_t**": "&out_chat",
    "aot_chat_info_t*": "&chat_info",
    "constaot_chat_options_t*": "NULL",
    "constaot_encode_options_t*": "NULL",
    "constaot_sampler_options_t*": "NULL",
    "constaot_allocator_t*": "NULL",
    "aot_async_t*": "async",
    "aot_async_t**": "&out_async",
    "aot_async_done_t*": "NULL",
    "aot_vulkan_info_t*": "&vulkan",
    "aot_vulkan_pipeline_t*": "&pipeline",
    "constaot_vulkan_buffer_t*": "&place",
    "structAHardwareBuffer*": "(struct AHardwareBuffer *)memory",
}
BEGIN = """
  static _Alignas(64) char memory[64];
  aot_error_t error;
  size_t number = 0;
  uint64_t value = 0;
  const char *name = NULL;
  static const int64_t strides[8];
  aot_variant_info_t variant = {.size = sizeof variant};
  aot_entry_info_t entry = {.size = sizeof entry};
  aot_tensor_t tensor = {.size = sizeof tensor};
  aot_program_info_t info = {.size = sizeof info};
  aot_cores_t cores = {.size = sizeof cores};
  aot_vulkan_info_t vulkan = {.size = sizeof vulkan};
  aot_vulkan_pipeline_t pipeline = {.size = sizeof pipeline};
  aot_vulkan_buffer_t place = {.size = sizeof place};
  aot_module_t *module = NULL, *out_module = NULL;
  aot_program_t *program = NULL, *out_program = NULL;
  static int32_t tokens[4];
  static const uint8_t marks[4];
  static const float logits[4];
  aot_vocabulary_t *vocabulary = NULL, *out_vocabulary = NULL;
  aot_vocabulary_info_t words = {.size = sizeof words};
  aot_decoder_t decoder = {.size = sizeof decoder};
  aot_rendered_t rendered = {.size = sizeof rendered};
  aot_sampler_t *sampler = NULL;
  aot_chat_t *out_chat = NULL;
  aot_chat_info_t chat_info = {.size = sizeof chat_info};
  aot_reply_t *reply = NULL, *out_reply = NULL;
  aot_reply_info_t reply_info = {.size = sizeof reply_info};
  aot_prefix_info_t prefix_info = {.size = sizeof prefix_info};
  static aot_candidate_t candidates[4];
  static aot_logprob_t top[4];
  float logprob = 0.0f;
  aot_async_t *async = NULL, *out_async = NULL;
  if (aot_module_open_path(arguments[1], NULL, NULL, &module) != AOT_OK) return 2;
  if (aot_program_create(module, NULL, NULL, &program) != AOT_OK) return 3;
  if (aot_async_create(program, NULL, &async) != AOT_OK) return 7;
  if (aot_vocabulary_open(module, NULL, NULL, &vocabulary) != AOT_OK) return 4;
  if (aot_sampler_create(NULL, NULL, NULL, &sampler) != AOT_OK) return 5;
  if (aot_reply_create(vocabulary, sampler, NULL, NULL, NULL, &reply) != AOT_OK) return 6;
"""
END = """
  CHECK(aot_async_destroy(async), AOT_OK);
  aot_reply_destroy(reply);
  aot_sampler_destroy(sampler);
  aot_vocabulary_close(vocabulary);
  aot_module_close(module);
  CHECK(aot_program_destroy(program), AOT_OK);
  CHECK(aot_program_destroy(NULL), AOT_OK);
"""


def test_null_gives_a_status(tmp_path: Path) -> None:
    text, made = source([INCLUDE / name for name in HEADERS], VALUES, BEGIN, END)
    assert made > 50
    program_source = tmp_path / "null_calls.c"
    program_source.write_text(text)
    sources = [*library_sources(), *sorted(RUNTIME.glob("drivers/vulkan/*.c")), program_source]
    flags = [*SANITIZE, "-DAOT_VULKAN=1", "-Wno-nonnull", f"-I{RUNTIME / 'drivers/vulkan'}"]
    program = build("null-calls", sources, flags, libraries=["-ldl", "-lm", "-pthread"])
    if program is None:
        pytest.skip("gcc is not installed")
    module = FOLDER / "vocabulary-and-metadata.aotm"
    result = subprocess.run([program, module], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_generator_reads_every_function() -> None:
    for name in HEADERS:
        text = (INCLUDE / name).read_text()
        assert len(declarations(text)) == text.count("\nAOT_API ")


def test_what_null_may_mean_is_a_parameter_there_is() -> None:
    declared = [each for name in HEADERS for each in declarations((INCLUDE / name).read_text())]
    found = {(each.name, p.name) for each in declared for p in each.parameters}
    found |= {("*", parameter) for _, parameter in found}
    assert set(ALLOWED) <= found
