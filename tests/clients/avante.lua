-- Performs a scenario with avante.nvim: asks, presses the keys of its popup, and chooses in its pickers. Prints the
-- sidebar at the end.

local neovim = dofile(vim.fs.dirname(debug.getinfo(1, "S").source:sub(2)) .. "/neovim.lua")
local scenario, wait, until_started = neovim.scenario, neovim.wait, neovim.until_started
neovim.add({ "plenary.nvim", "nui.nvim", "avante.nvim" })
vim.opt.laststatus = 3
vim.opt.columns = 160
vim.opt.lines = 60
dofile(vim.env.CONFIG)
vim.cmd.runtime("plugin/avante.lua")

local function sidebar()
  return require("avante").get()
end

local function shown()
  local result = sidebar() and sidebar().containers and sidebar().containers.result
  return result and neovim.text(result.bufnr) or ""
end

local function set_plan()
  local is_chosen = false
  vim.ui.select = function(items, options, on_choice)
    local format = options.format_item or tostring
    for number, item in ipairs(items) do
      if format(item):find("Plan", 1, true) then
        is_chosen = true
        return on_choice(item, number)
      end
    end
    error("no plan mode in " .. vim.inspect(items))
  end
  vim.cmd("AvanteACPModes")
  wait("the list of modes", function()
    return is_chosen
  end)
  vim.wait(300)
end

local function popup()
  local confirm = require("avante.llm_tools.helpers").confirm_popup
  return confirm and confirm._popup
end

local function until_asked()
  wait("a permission request", popup)
end

local function answer(key)
  until_asked()
  -- Nobody reads a question faster. A faster answer to a plan does not count.
  vim.wait(1000)
  vim.api.nvim_set_current_win(popup().winid)
  vim.api.nvim_feedkeys(key, "xt", false)
end

local answers = {
  ["permission-allowed"] = "y",
  ["permission-refused"] = "n",
  ["plan-exit-accepted"] = "a",
  ["plan-exit-refused"] = "n",
}

local function steps()
  vim.cmd.edit(neovim.project .. "/notes.md")
  local text = scenario == "slash-behind-context" and "\\plan write it" or "write it"
  -- A question to a sidebar without a session would start a second agent.
  require("avante.api").ask({ ask = false })
  wait("a session", function()
    return sidebar() and sidebar().chat_history and sidebar().chat_history.acp_session_id ~= nil
  end)
  if scenario == "mode-idle" then
    set_plan()
  end
  require("avante.api").ask({ question = text })
  if scenario == "mode-mid-turn" then
    until_started()
    set_plan()
  elseif scenario == "cancel" then
    until_started()
    require("avante.api").stop()
    return vim.wait(1500)
  elseif scenario == "mode-under-permission" then
    until_asked()
    set_plan()
    answer("y")
  elseif answers[scenario] then
    answer(answers[scenario])
  end
  wait("the end of the turn", function()
    for _, last in ipairs({ "Hello from the script.", "The reply ends here.", "2. German", "change in the plan?" }) do
      if shown():find(last, 1, true) then
        return true
      end
    end
  end)
end

neovim.run(steps, shown)
