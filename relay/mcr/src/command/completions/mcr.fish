# fish completion for mcr(1); what runs is asked of the daemon.
function __mcr_complete
    set --local words (commandline --tokenize --cut-at-cursor --current-process)
    set --local current (commandline --current-token --cut-at-cursor)
    $words[1] complete --described -- $words[2..-1] "$current" 2>/dev/null
end
complete --command mcr --no-files --arguments '(__mcr_complete)'
