#!/bin/sh
# table.sh DIR: the rows are of the pairs of cuda-case, and its table.sh counts them.
exec sh "$(dirname "$0")/../cuda-case/table.sh" "$@"
