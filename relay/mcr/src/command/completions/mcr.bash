# bash completion for mcr(1); what runs is asked of the daemon.
_mcr() {
    local line=${COMP_LINE:0:COMP_POINT} current cut i
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    current=${words[-1]}
    mapfile -t COMPREPLY < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
    # Readline ends words at : and = as well, and replaces only what follows the last of them.
    cut=${current%"${current##*[:=]}"}
    if [[ $COMP_WORDBREAKS == *:* && $COMP_WORDBREAKS == *=* ]]; then
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$cut"}
        done
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=,/] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _mcr mcr
