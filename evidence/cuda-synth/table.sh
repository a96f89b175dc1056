#!/bin/sh
# table.sh DIR: as for cuda-case.
exec sh "$(dirname "$0")/../cuda-case/table.sh" "$@"
