# levers and facts of the build
q4x levers
q4x levers --markdown | head -n 4
q4x levers --json | head -n 6
q4x version
q4x version --json | tr -d ' ' | cut -d: -f1 | grep '"'
q4x --version | head -n 1
