# fish completion of the replay programs: share/replay/complete says what there is.

function __replay_candidates
    set -l words (commandline -opc)
    set -l program (command -s $words[1]); or return
    set -l complete (string replace -r '[^/]*$' ../share/replay/complete $program)
    for line in (command $complete $program $words[2..-1] (commandline -ct))
        switch $line
            case @files
                __fish_complete_path (commandline -ct)
            case @folders
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end

for program in replay-broker replay-ctl replay-launch replay-actor replay-learner replay-single replay-bench replay-demo
    complete -c $program -f -a '(__replay_candidates)'
end
