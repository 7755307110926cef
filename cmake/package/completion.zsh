#compdef replay-broker replay-ctl replay-launch replay-actor replay-learner replay-single replay-bench replay-demo
# zsh completion of the replay programs: share/replay/complete says what there is.

local program=${commands[$words[1]]:-$words[1]} line
local -a found
for line in "${(@f)$($program:h/../share/replay/complete $program "${(@)words[2,CURRENT]}")}"; do
    case $line in
    '') ;;
    @files) _files ;;
    @folders) _files -/ ;;
    *$'\t'*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    *) found+=("${line//:/\\:}") ;;
    esac
done
_describe -o replay found
