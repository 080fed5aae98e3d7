;;; emacs.el --- performs a scenario with agent-shell  -*- lexical-binding: t; -*-

;; Types into the shell, presses the keys of its dialogs, and chooses in its pickers, as a user does.  Prints the
;; shell at the end.

(require 'cl-lib)
(dolist (plugin '("acp.el" "shell-maker" "agent-shell-plus"))
  (add-to-list 'load-path (expand-file-name plugin (getenv "CLIENT_PLUGINS"))))
(setq make-backup-files nil auto-save-default nil create-lockfiles nil)
(load (getenv "CONFIG") nil t t)

(defvar scenario (getenv "SCENARIO"))
(defvar project (file-name-as-directory (getenv "PROJECT")))
(defvar events nil)

(defun wait (what is-met)
  "Wait for 20 s at most until IS-MET returns non-nil; WHAT is for the message."
  (let ((end (+ (float-time) 20)))
    (while (not (funcall is-met))
      (when (> (float-time) end)
        (error "Waited in vain: %s" what))
      (accept-process-output nil 0.02))))

(defun wait-for-event (event)
  (wait (symbol-name event) (lambda () (memq event events))))

(defun until-started ()
  (wait "started" (lambda () (file-exists-p (concat project "started")))))

(defun press (key)
  "Press KEY on the first button of the newest permission dialog, if there is one."
  (goto-char (point-max))
  (when-let* ((button (agent-shell-previous-permission-button)))
    (goto-char button)
    (call-interactively (key-binding (kbd key)))))

(defun answer (key)
  (wait-for-event 'permission-request)
  ;; Nobody reads a question faster.  A faster answer to a plan does not count.
  (sleep-for 1)
  (press key))

(defun set-plan ()
  "Choose plan mode in the picker, and wait for Modegate's answer."
  (let ((is-set nil))
    (cl-letf (((symbol-function 'completing-read) (lambda (&rest _) "Plan")))
      (agent-shell-set-session-mode (lambda () (setq is-set t))))
    (wait "the mode" (lambda () is-set))))

(defun submit (text)
  (goto-char (point-max))
  (insert text)
  (shell-maker-submit))

(defun steps (shell)
  (with-current-buffer shell
    (wait-for-event 'prompt-ready)
    (unless (getenv "SECOND")
      (when (equal scenario "mode-idle")
        (set-plan))
      (submit (if (equal scenario "slash-behind-context") "@notes.md /plan write it" "write it"))
      (pcase scenario
        ("mode-mid-turn" (until-started) (set-plan))
        ("cancel" (until-started) (agent-shell-interrupt t))
        ("mode-under-permission" (wait-for-event 'permission-request) (set-plan) (press "y"))
        ("permission-allowed" (answer "y"))
        ("plan-exit-accepted" (answer "!"))
        ((or "permission-refused" "plan-exit-refused") (answer "C-c C-c")))
      (wait-for-event 'turn-complete))
    (princ (buffer-substring-no-properties (point-min) (point-max)))))

(let ((default-directory project))
  (find-file "notes.md")
  (let ((shell (agent-shell-start :config (car agent-shell-agent-configs))))
    (agent-shell-subscribe-to :shell-buffer shell
                              :on-event (lambda (event) (push (map-elt event :event) events)))
    (steps shell)))
;;; emacs.el ends here
