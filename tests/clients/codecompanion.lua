-- Performs a scenario with codecompanion.nvim as a user does: types into the chat, presses its keys, and chooses in
-- its pickers. Prints the chat at the end.

local neovim = dofile(vim.fs.dirname(debug.getinfo(1, "S").source:sub(2)) .. "/neovim.lua")
local scenario, wait, until_started = neovim.scenario, neovim.wait, neovim.until_started
local events = {}
neovim.add({ "plenary.nvim", "codecompanion.nvim" })
vim.api.nvim_create_autocmd("User", {
  pattern = "CodeCompanion*",
  callback = function(event)
    events[event.match] = (events[event.match] or 0) + 1
  end,
})
dofile(vim.env.CONFIG)

local function wait_for_event(name, count)
  wait(name, function()
    return (events["CodeCompanion" .. name] or 0) >= (count or 1)
  end)
end

local function press(keys)
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, false, true), "mx", false)
end

--- Answers the pickers that follow each other: each takes the first item that contains the next text.
local function choose(...)
  local texts = { ... }
  vim.ui.select = function(items, _, on_choice)
    local text = table.remove(texts, 1)
    for number, item in ipairs(items) do
      if item:find(text, 1, true) then
        return on_choice(item, number)
      end
    end
    error("no choice " .. text .. " in " .. vim.inspect(items))
  end
end

local function run_chat_command(chat, name)
  local command = require("codecompanion.interactions.chat.slash_commands.builtin." .. name)
  command.new({ Chat = chat, config = {} }):execute()
end

local function set_plan(chat)
  choose("Mode", "Plan")
  run_chat_command(chat, "acp_session_options")
end

local function answer(kind)
  wait_for_event("ToolApprovalRequested")
  -- Nobody reads a question faster. A faster answer to a plan does not count.
  vim.wait(1000)
  press(require("codecompanion.interactions.chat.tools.labels").keymaps()[kind])
end

local function steps()
  vim.cmd.edit(neovim.project .. "/notes.md")
  vim.cmd("CodeCompanionChat")
  local chat = require("codecompanion").last_chat()
  wait("a session", function()
    return chat.acp_connection and chat.acp_connection.session_id ~= nil
  end)
  if scenario == "load" and vim.env.SECOND then
    choose("write it")
    run_chat_command(chat, "resume")
    return
  end
  if scenario == "mode-idle" then
    set_plan(chat)
  end
  local text = scenario == "slash-behind-context" and "#{buffer} \\plan write it" or "write it"
  vim.api.nvim_buf_set_lines(chat.bufnr, -2, -1, false, { text })
  press("<CR>")
  if scenario == "mode-mid-turn" then
    until_started()
    set_plan(chat)
  elseif scenario == "cancel" then
    until_started()
    press("q")
  elseif scenario == "mode-under-permission" then
    wait_for_event("ToolApprovalRequested")
    set_plan(chat)
    answer("accept")
  elseif scenario == "permission-allowed" then
    answer("accept")
  elseif scenario == "plan-exit-accepted" then
    answer("always_accept")
  elseif scenario:find("refused") then
    answer("reject")
  end
  if scenario == "cancel" then
    wait_for_event("ChatStopped")
    vim.wait(1000)
  else
    wait_for_event("ChatDone")
  end
end

neovim.run(steps, function()
  local chat = require("codecompanion").last_chat()
  return chat and neovim.text(chat.bufnr) or ""
end)
