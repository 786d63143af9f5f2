#compdef mcr
# zsh completion for mcr(1); what runs is asked of the daemon.
_mcr() {
    local -a all open
    all=(${(f)"$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    open=(${(M)all:#*[:=,/]})
    all=(${all:#*[:=,/]})
    (( $#open )) && compadd -S '' -- $open
    (( $#all )) && compadd -- $all
    (( $#open + $#all )) || _files
}
if [[ $funcstack[1] == _mcr ]]; then
    _mcr "$@"
else
    compdef _mcr mcr
fi
