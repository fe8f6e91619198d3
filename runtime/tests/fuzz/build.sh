#!/usr/bin/env bash
# What OSS-Fuzz calls: builds every target of the runtime with $CC, $CFLAGS and $LIB_FUZZING_ENGINE,
# and puts it into $OUT with its seeds, its dictionary, its options and the module that it runs.
# Without these variables, clang's libFuzzer under ASan and UBSan.  Seeds are compiled models: the
# compiler is installed where it is not.
set -euo pipefail

cd "$(dirname "$0")/../../.."
python3 -c 'import aot, pytest' 2>/dev/null || python3 -m pip install -q -e '.[test]'
python3 tests/support/fuzzers.py build "${OUT:?the folder for what is built}"
