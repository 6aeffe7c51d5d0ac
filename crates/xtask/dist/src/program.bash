
# Behind `--` stand a program and its arguments: they are completed as if they stood alone.
_anyring_or_program() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        # The package bash-completion knows how to complete the program's own arguments.
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return 0
    done
    _anyring "$@"
}
complete -F _anyring_or_program -o bashdefault -o default anyring
