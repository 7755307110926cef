# bash completion of the replay programs. Options, verbs and commands are read from what --help prints, so this file knows
# none of them by name.

# Words of `PROGRAM [VERB] --help` that may follow: options, and what stands first in an indented line of the list of verbs.
_replay_words() {
    "$@" --help 2>/dev/null </dev/null | awk '
        match($0, /^ +(-[A-Za-z], )?--[a-z][a-z-]*/) { word = substr($0, RSTART, RLENGTH); sub(/.*--/, "--", word); print word }
        /^  [a-z][a-z-]*( |$)/ { print $1 }'
}

_replay() {
    local program=$1 current=$2 previous=$3 verb= word words
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $previous in
    --set | --seed | --lines | --limit | --timeout | --interval | --count | --episodes) return ;;
    --log-level) mapfile -t COMPREPLY < <(compgen -W "debug info warn error off" -- "$current"); return ;;
    --folder | --run) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    -c | --config | --endpoints-file | --save | --weights) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    esac
    if [[ -n $verb && -e $verb ]]; then verb=; fi # a file: replay-launch run.yaml
    words=$(_replay_words "$program" ${verb:+"$verb"})
    if [[ -n $verb || $current == -* ]]; then
        words=$(grep -e '^--' <<<"$words")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [[ $current == -* ]] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
}

complete -o filenames -F _replay replay-broker replay-ctl replay-launch replay-actor replay-learner replay-single \
    replay-bench replay-demo
